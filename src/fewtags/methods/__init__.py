"""Every method by name; nothing heavy is loaded here (see `table`)."""

from fewtags.methods.table import METHODS, Method, find_method, list_methods, objective_class, register

__all__ = ["METHODS", "Method", "find_method", "list_methods", "objective_class", "register"]

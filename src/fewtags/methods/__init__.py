"""Every method by name; nothing heavy is loaded here (see `table`)."""

from fewtags.methods.method import Method, Profile
from fewtags.methods.table import METHODS, find_method, list_methods, objective_class, register

__all__ = ["METHODS", "Method", "Profile", "find_method", "list_methods", "objective_class", "register"]

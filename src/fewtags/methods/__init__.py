"""All methods by name; nothing heavy is imported here (see `table`)."""

from fewtags.methods.method import Method, Profile
from fewtags.methods.table import METHODS, all_methods, find_method, grouped, list_methods, objective_class, register

__all__ = [
    "METHODS",
    "Method",
    "Profile",
    "all_methods",
    "find_method",
    "grouped",
    "list_methods",
    "objective_class",
    "register",
]

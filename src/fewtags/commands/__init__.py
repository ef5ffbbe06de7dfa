"""What each command does, one module per command; `fewtags.cli` parses the options and calls them."""

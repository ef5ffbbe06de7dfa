"""The probability that a tag is present in an image, when only some tags are known: the one place that says it."""

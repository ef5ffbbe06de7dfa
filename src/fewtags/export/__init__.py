"""Models to deploy: one file with everything in it, checked against torch after it is written."""

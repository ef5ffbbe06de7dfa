"""Tags over HTTP: POST an image, get its tags (`fewtags serve`)."""

"""One batch over unlike devices: the search for its split, and the file of the times that it goes by."""

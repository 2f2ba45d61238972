"""Files of users and of the store: images, masks, archives, tables of labels, what a test set is, provenance."""

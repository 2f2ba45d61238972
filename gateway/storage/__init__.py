"""Images in the object store, and the rows that grant access to them."""

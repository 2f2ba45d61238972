"""Bytes of images in the object store, and the rows that say who may read them."""

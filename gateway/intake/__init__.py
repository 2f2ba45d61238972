"""From uploaded files, archives and manifests to checked source images with their ground truth."""

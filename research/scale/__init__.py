"""Scale tests with jobs of 100,000 source images and up to 32 replicas; the models only wait, all else is real."""

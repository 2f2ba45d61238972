"""Jobs of 100,000 source images and 32 replicas on any machine: all is real but the models, which only wait."""

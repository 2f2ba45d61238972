"""The domain of single objects: what a scene is, how it is drawn and described; for classification."""

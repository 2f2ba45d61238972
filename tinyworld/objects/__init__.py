"""The domain of single objects, for classification: scenes, rendering and captions."""

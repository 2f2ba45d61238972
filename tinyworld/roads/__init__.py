"""The domain of driving scenes, for segmentation: a car camera's view with exact masks."""

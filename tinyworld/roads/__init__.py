"""The district of driving scenes: what a car's camera sees, with exact masks; for segmentation."""

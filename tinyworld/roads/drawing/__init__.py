"""The parts of a driving scene, drawn back to front."""

"""The small drawn world: scenes, their pictures and captions, and the models really trained on them."""

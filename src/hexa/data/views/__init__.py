"""Views of images: random crops and colours for training, resized images for evaluation."""

"""For a person with a folder of images: look at them, plan, train from weights within a time, say whether it helped."""

"""Read folders of pictures: a folder for each class, and one for each split."""

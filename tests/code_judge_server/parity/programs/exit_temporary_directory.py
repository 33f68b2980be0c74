import os, tempfile

folder = tempfile.TemporaryDirectory()
print(os.path.isdir(folder.name))

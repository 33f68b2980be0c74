import os, pathlib, shutil, tempfile
root = pathlib.Path("tree")
(root / "a" / "b").mkdir(parents=True)
(root / "a" / "file.txt").write_text("text")
print(sorted(str(p) for p in root.rglob("*")), (root / "a/file.txt").stat().st_size, root.resolve(), pathlib.Path.home())
shutil.copytree(root, "copy")
shutil.rmtree(root)
print(sorted(os.listdir(".")), tempfile.gettempdir())
with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w+", dir=folder) as file:
    print(os.path.isfile(file.name))
print(os.path.exists(folder))
(root / "x").read_text()

import bz2, gzip, io, lzma, tarfile, zipfile, zlib
data = b"hello world " * 100
print([len(module.decompress(module.compress(data))) for module in (zlib, bz2, lzma, gzip)], zlib.crc32(data), zlib.adler32(data))
buffer = io.BytesIO()
with zipfile.ZipFile(buffer, "w") as archive:
    archive.writestr("a.txt", "content")
print(zipfile.ZipFile(buffer).namelist(), zipfile.ZipFile(buffer).read("a.txt"))
with tarfile.open("t.tar", "w") as archive:
    archive.add(__file__, "main.py")
print(tarfile.open("t.tar").getnames())
zlib.decompress(b"not compressed")

import base64, binascii, hashlib, hmac
for name in ("md5", "sha1", "sha256", "sha3_256", "blake2b"):
    print(name, hashlib.new(name, b"abc").hexdigest()[:32])
print(hmac.new(b"k", b"m", "sha256").hexdigest()[:16], base64.b64encode(b"\x00\xff"), binascii.hexlify(b"ab"), hashlib.pbkdf2_hmac("sha256", b"p", b"s", 10).hex()[:16])
base64.b64decode("a", validate=True)

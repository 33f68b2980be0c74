import os, random, secrets, uuid
values = {random.random() for _ in range(100)} | {secrets.token_hex(8), uuid.uuid4(), os.urandom(8)}
print(len(values))

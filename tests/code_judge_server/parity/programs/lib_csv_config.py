import configparser, csv, io, tomllib
rows = list(csv.DictReader(io.StringIO('a,b\n1,"x, y"\n2,z\n')))
print(rows)
out = io.StringIO(); csv.writer(out).writerow([1, "a,b", 'q"q']); print(repr(out.getvalue()))
config = configparser.ConfigParser(); config.read_string("[s]\nkey = %(other)s!\nother = v\n"); print(config["s"]["key"])
print(tomllib.loads('x = 1\n[t]\nd = 2020-01-01'))
tomllib.loads("x = ")

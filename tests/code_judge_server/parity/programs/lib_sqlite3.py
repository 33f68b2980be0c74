import sqlite3
db = sqlite3.connect(":memory:")
db.execute("create table t (id integer primary key, name text, value real)")
db.executemany("insert into t (name, value) values (?, ?)", [("a", 1.5), ("b", 2.5), ("ç", None)])
print(db.execute("select name, total(value) over (order by id) from t").fetchall(), db.total_changes)
with sqlite3.connect("file.db") as other:
    other.execute("create table u (x)")
print(sqlite3.connect("file.db").execute("select name from sqlite_master").fetchall())
db.execute("select * from missing")

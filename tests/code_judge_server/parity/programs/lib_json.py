import json
print(json.dumps({"b": [1, 2.5, None, True], "a": "é\u2028\U0001f600"}, sort_keys=True, indent=2))
print(json.loads('{"x": 1e400, "y": -0.0, "n": NaN}'), json.dumps("é", ensure_ascii=False))
try:
    json.dumps({1, 2})
except TypeError as error:
    print(error)
json.loads("[" * 100_000)

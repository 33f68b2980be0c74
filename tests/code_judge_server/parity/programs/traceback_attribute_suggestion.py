import collections

collections.Countr("abc")

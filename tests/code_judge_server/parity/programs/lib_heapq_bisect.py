import array, bisect, graphlib, heapq
heap = [5, 1, 4]; heapq.heapify(heap); heapq.heappush(heap, 0)
print([heapq.heappop(heap) for _ in range(4)], heapq.nlargest(2, [1, 9, 3]), list(heapq.merge([1, 4], [2, 3])))
print(bisect.bisect_left([1, 2, 2, 3], 2), array.array("i", [1, 2]).tobytes())
print(list(graphlib.TopologicalSorter({"c": ["b"], "b": ["a"]}).static_order()))

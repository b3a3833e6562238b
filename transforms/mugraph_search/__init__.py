"""The muGraph search: fused kernels that no rule named in advance (Mirage, section 4)."""

from superopt.transforms.mugraph_search.search import SearchOptions, SearchResult, propose

__all__ = ["SearchOptions", "SearchResult", "propose"]

"""Tables as HTML, which notebooks show for a graph, a cluster, a plan or a comparison."""

import html
from collections.abc import Iterable, Sequence

__all__ = ["html_rows", "html_table"]


def html_rows(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A title above labelled rows."""
    return html_table(title, (), rows)


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A title above a table; all texts are escaped.

    Args:
      title: Title of the table.
      head: Titles of its columns, or nothing.
      rows: Texts, one per column; those after the first keep their spaces.
    """

    def row(cells: Sequence[str], tag: str) -> str:
        style = ' style="text-align:left;white-space:pre"'
        return "<tr>" + "".join(f"<{tag}{style}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    top = f"<thead>{row(head, 'th')}</thead>" if head else ""
    body = "".join(row(cells, "td") for cells in rows)
    return f"<div><b>{html.escape(title)}</b><table>{top}<tbody>{body}</tbody></table></div>"

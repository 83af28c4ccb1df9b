"""Print the tools of a set, with their arguments and scopes, as Markdown.

    python tools/tool_table.py parallel-mcp

`./go docs` writes it to the page of the set.
"""

import sys

from onetray.mcp.registry import Tool, load_tools


def main(name: str) -> None:
    print("| tool | arguments | scope | |")
    print("|---|---|---|---|")
    for tool_set in load_tools(name).sets:
        for tool in tool_set.tools:
            print(f"| `{tool.name}` | {arguments_of(tool)} | {', '.join(tool.scopes)} | {tool.description} |")


def arguments_of(tool: Tool) -> str:
    schema = tool.description_json["inputSchema"]
    required = schema.get("required", ())
    names = [name if name in required else f"{name}?" for name in schema["properties"]]
    return ", ".join(f"`{name}`" for name in names) or "none"


if __name__ == "__main__":
    main(sys.argv[1])

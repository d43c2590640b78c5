"""What commands print: aligned tables, wrapped sentences, Markdown, JSON and CSV."""

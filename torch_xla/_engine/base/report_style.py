"""The style sheet of reports in HTML."""

from __future__ import annotations

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222;
  background: #fff; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
.grid { stroke: #8884; } .axis { stroke: #888; } .step:hover { opacity: .6; }
.legend span { margin-right: 1em; white-space: nowrap; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
.bottleneck { border-left: 4px solid #9c9c9c; padding: .2em 1em; margin: .6em 0; }
.bottleneck.problem { border-color: #d64550; } .bottleneck.ok { border-color: #59a14f; }
.bottleneck p { margin: 0; } .bottleneck .advice, .muted { color: #666; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2em .8em .2em 0;
  border-bottom: 1px solid #8883; overflow-wrap: anywhere; vertical-align: top; white-space: pre-line; }
th { white-space: nowrap; } td.n, th.n { text-align: right; white-space: nowrap; overflow-wrap: normal; }
td code { display: block; color: #666; font-size: .85em; }
table.environment { width: auto; } table.environment td { border: 0; padding: 0 1.5em 0 0; }
#detail { min-height: 3em; font-family: monospace; white-space: pre-wrap; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b; }
  .bottleneck .advice, .muted, td code { color: #aaa; } }
"""

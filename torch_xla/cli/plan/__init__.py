"""``torch-xla plan``: compares targets and variations of a script's options before any of them is rented.

command ──► variations    the grid: targets x values of options
        ──► search        without a grid: proposes meshes and remat policies
        ──► planner       runs the combinations that are not stored: result_store, process_pool ──► worker
        ──► summary       an ahead-of-time report to the row of a combination: advice
        ──► table, page   text, HTML
"""

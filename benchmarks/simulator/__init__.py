"""A discrete-event simulator: the product's driver, session and K rule in virtual time, over servers of stated cost.

    clock        an event loop whose time jumps from one event to the next
    costs        what a step costs, and the closed forms that follow
    acceptance   which of a draft's guesses are right: by chance, in regimes, or as recorded from a real pair
    stations     a server that computes in steps: who is ready shares the next one
    engines      draft and target, as the driver's ports want them, each over a station
    world        clients, closed loop or arriving by chance, and the gateway between them and the engines
    oracle       the best K where acceptance and costs are known, to measure the K rule by

Virtual seconds are counted, so a figure is the same on a busy machine as on an idle one, and the same on each run.
"""

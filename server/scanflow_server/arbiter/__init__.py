"""The arbiter: decides which intents of agents are acted on, and why. Pure, except its engine, which acts."""

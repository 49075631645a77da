"""Planning: agents that look ahead instead of learning."""

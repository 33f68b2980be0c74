"""The endpoints of two other judges, code-judge and SandboxFusion, for their unchanged clients."""

"""The endpoints of two other judges, so that their clients work against this one unchanged: code-judge and SandboxFusion."""

-- How Argo CD sees a SpeculativeDeployment; docs/gitops.md says where it goes, and why each state reads as it does.
-- It knows the conditions and nothing else of the status, and uses no library of Lua's but the basic one, which is all
-- that Argo CD gives to a health check.

local function condition(kind)
  for _, held in ipairs(obj.status.conditions) do
    if held.type == kind then
      return held
    end
  end
  return { status = "Unknown", reason = "", message = "" }
end

local function health(status, message)
  return { status = status, message = message }
end

local function suspended(ready, reconciling, progressing)
  if progressing.reason == "Paused" then
    return progressing.message
  end
  if obj.spec.paused and reconciling.reason == "Pending" then
    return "spec.paused is true: " .. reconciling.message
  end
  if ready.reason == "ScaledToZero" and reconciling.status ~= "True" then
    return ready.message
  end
  return nil
end

if obj.status == nil or obj.status.conditions == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return health("Progressing", "the operator has not looked at this generation yet")
end

local ready, reconciling = condition("Ready"), condition("Reconciling")
local stalled, progressing = condition("Stalled"), condition("Progressing")

if stalled.status == "True" and reconciling.status ~= "True" then
  return health("Degraded", stalled.reason .. ": " .. stalled.message)
end

local waits = suspended(ready, reconciling, progressing)
if waits ~= nil then
  return health("Suspended", waits)
end

if reconciling.status == "True" then
  local moves = progressing.status == "True"
  return health("Progressing", moves and progressing.message or reconciling.message)
end

if ready.status == "True" then
  return health("Healthy", ready.message)
end
return health("Degraded", ready.message)

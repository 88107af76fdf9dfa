-- Health of the kinds of gputenancy.io for Argo CD, by their conditions.
local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

local function said(kind)
  return conditions[kind] ~= nil and conditions[kind].message or ""
end

if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = "is being deleted " .. said("Ready")}
end
if status.observedGeneration == nil or status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the operator has not seen this generation yet"}
end
if is("Stalled") then
  return {status = "Degraded", message = said("Stalled")}
end
if obj.spec ~= nil and obj.spec.suspend == true then
  return {status = "Suspended", message = said("Ready")}
end
if is("Ready") then
  return {status = "Healthy", message = said("Ready")}
end
return {status = "Progressing", message = said("Ready")}

{{- /* The start of the names of workloads. Accounts, roles, policies and ConfigMaps have fixed names, which the programs and each other's rules name. */}}
{{- define "gputenancy.fullname" -}}
{{ .Values.fullnameOverride | default .Values.nameOverride | default "gputenancy" }}
{{- end }}

{{- /* A version as the value of a label, which has no plus sign and at most 63 characters. */}}
{{- define "gputenancy.labelValue" -}}
{{ . | replace "+" "_" | trunc 63 | trimAll "-_." }}
{{- end }}

{{- define "gputenancy.labels" -}}
helm.sh/chart: {{ include "gputenancy.labelValue" (printf "%s-%s" .Chart.Name .Chart.Version) }}
app.kubernetes.io/part-of: gputenancy
app.kubernetes.io/version: {{ include "gputenancy.labelValue" .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "gputenancy.selector" . }}
{{- range $key, $value := .Values.commonLabels }}
{{- if regexMatch "^(app[.]kubernetes[.]io/(name|instance|part-of|version|managed-by)|(helm[.]sh|gputenancy[.]io)/.*)$" $key }}
{{- fail (printf "commonLabels: the chart sets %s itself, choose another key" $key) }}
{{- else if not (regexMatch "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $key) }}
{{- fail (printf "commonLabels: %s is not the key of a label, such as team or example.com/team" $key) }}
{{- end }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* What names a component within a release; never changes, as Deployments cannot change their selector. */}}
{{- define "gputenancy.selector" -}}
app.kubernetes.io/name: gputenancy-{{ .component }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The root context with the name of a component. A registry of the umbrella chart takes the place of the one that the repository names. A tag
       has no plus sign. */}}
{{- define "gputenancy.image" -}}
{{- $image := index .Values.image .component -}}
{{- $repository := $image.repository -}}
{{- with (.Values.global).imageRegistry -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "") -}}
{{- end -}}
{{ $repository }}{{ with $image.digest }}@{{ . }}{{ else }}:{{ default (replace "+" "_" .Chart.AppVersion) $image.tag }}{{ end }}
{{- end }}

{{- define "gputenancy.pullPolicy" -}}
{{- $image := index .Values.image .component -}}
{{ default .Values.image.pullPolicy $image.pullPolicy }}
{{- end }}

{{- /* Names of Secrets; those of the umbrella chart may also be objects with a name. */}}
{{- define "gputenancy.pull" -}}
{{- $names := .Values.image.pullSecrets | default list -}}
{{- range (.Values.global).imagePullSecrets -}}
{{- if kindIs "map" . }}{{ $names = append $names .name }}{{ else }}{{ $names = append $names . }}{{ end -}}
{{- end -}}
{{- with $names | uniq }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* "true" where the agent has to leave when the GPU Operator asks its clients to. Older ones set no such label, and a selector
       for it would take the agent from every node; simulated nodes have none either. A kind that the API server does not know is
       not looked up: helm ends with an error then. */}}
{{- define "gputenancy.gpuOperatorClient" -}}
{{- $set := toString .Values.agent.gpuOperatorClient -}}
{{- if and (eq $set "auto") (not .Values.simulator.enabled) (.Capabilities.APIVersions.Has "nvidia.com/v1/ClusterPolicy") (lookup "nvidia.com/v1" "ClusterPolicy" "" "").items -}}
{{- $set = "false" -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- if hasKey (default dict .metadata.labels) "nvidia.com/gpu.deploy.client" -}}{{- $set = "true" -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $set -}}
{{- end }}

{{- /* Who gives pods with a GPU the toleration of the taint of GPU nodes: Mutate (the API server), Require (their authors), None. */ -}}
{{- define "gputenancy.gpuToleration" -}}
{{- $taint := .Values.policies.gpuTaint -}}
{{- if or (not .Values.policies.enabled) (not $taint.key) -}}None
{{- else if ne $taint.toleration "auto" -}}{{ $taint.toleration }}
{{- else if semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version -}}Mutate
{{- else -}}Require
{{- end -}}
{{- end }}

{{- /* "true" where containers without a GPU get NVIDIA_VISIBLE_DEVICES=void. */ -}}
{{- define "gputenancy.hidesGpus" -}}
{{- $hide := .Values.policies.hideGpus -}}
{{- if and .Values.policies.enabled (or (eq $hide "Mutate") (and (eq $hide "auto") (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version))) -}}true{{- end -}}
{{- end }}

{{- /* "true" where the API server fills in pods of tenants, and so takes KAI's annotations of fractions. */ -}}
{{- define "gputenancy.fillsInPods" -}}
{{- if or (include "gputenancy.hidesGpus" .) (eq (include "gputenancy.gpuToleration" .) "Mutate") -}}true{{- end -}}
{{- end }}

{{- /* PriorityClasses that every tenant may use, in JSON: those of the values, and the cluster's default class, which the API server writes into
       pods without one. helm template, and so Argo CD, cannot read the cluster. */ -}}
{{- define "gputenancy.commonPriorityClasses" -}}
{{- $classes := .Values.policies.priorityClasses | default list -}}
{{- range (lookup "scheduling.k8s.io/v1" "PriorityClass" "" "").items -}}
{{- if .globalDefault }}{{ $classes = append $classes .metadata.name }}{{ end -}}
{{- end -}}
{{- $classes | uniq | toJson -}}
{{- end }}

{{- /* "true" where the operator lets owners and viewers read their GpuTenant: only with policies, which confine its ClusterRoles. */ -}}
{{- define "gputenancy.ownersReadTenant" -}}
{{- if and .Values.policies.enabled .Values.tenants.ownersReadTenant -}}true{{- end -}}
{{- end }}

{{- define "gputenancy.operatorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:gputenancy-operator
{{- end }}

{{- define "gputenancy.agentUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:gputenancy-agent
{{- end }}

{{- /* What the restricted Pod Security Standard asks of a container, and a root file system that nobody writes. */}}
{{- define "gputenancy.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* A text of CEL, cut: the API server shows no message of more than 5 KiB. */}}
{{- define "gputenancy.short" -}}
[{{ . }}].map(t, t.size() > 1000 ? t.substring(0, 1000) + ' …' : t)[0]
{{- end -}}

{{- /* Variables of the values for a container, whose own are those of the list "own": a name that is set twice would have one of two values. */}}
{{- define "gputenancy.extraEnv" -}}
{{- $own := .own -}}
{{- range .extra }}
{{- if has .name $own }}{{ fail (printf "%s sets %s, which the chart sets already or the list has twice: take it out" $.path .name) }}{{ end }}
{{- $own = append $own .name }}
- {{ toJson . }}
{{- end }}
{{- end }}

{{- /* Variables of the operator that its rights depend on; the pod of helm test has them too. */}}
{{- define "gputenancy.operatorLocations" -}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- with .Values.migManager.namespace }}
- {name: MIG_CONFIG_NAMESPACE, value: {{ . | quote }}}
{{- end }}
{{- with .Values.devicePlugin.namespace }}
- {name: DEVICE_PLUGIN_CONFIG_NAMESPACE, value: {{ . | quote }}}
{{- end }}
- {name: WAKE_CONTROLLERS, value: {{ .Values.budget.wakeControllers | quote }}}
- {name: OWNERS_READ_TENANT, value: {{ include "gputenancy.ownersReadTenant" . | default "false" | quote }}}
- {name: USAGE_ENDPOINT, value: {{ .Values.usageEndpoint.enabled | quote }}}
- {name: AGENT_SELECTOR, value: {{ include "gputenancy.selector" (merge (dict "component" "agent") .) | replace ": " "=" | replace "\n" "," | quote }}}
- {name: VIRTUAL_CLUSTERS, value: {{ .Values.virtualClusters.enabled | quote }}}
{{- if .Values.queueing.kueue.enabled }}
- {name: KUEUE, value: "true"}
{{- end }}
{{- with .Values.tenants.imagePullSecrets }}
- {name: PULL_SECRETS, value: {{ join "," . | quote }}}
{{- end }}
{{- end }}

module gputenancy.io/tools/crds

go 1.26.3

require (
	github.com/argoproj/argo-cd/v3 v3.5.7
	github.com/fluxcd/helm-controller v1.6.1
	github.com/fluxcd/source-controller v1.9.6
)

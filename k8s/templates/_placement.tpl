{{/* Where pods run: nodes, GPUs, and beside the volume of weights. */}}

{{/* Where a pod is put; call with gateway's, worker's or a service's values. */}}
{{- define "contrafact.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Whether the volume of weights can be mounted by the pods of one node only. */}}
{{- define "contrafact.oneNode" -}}
{{- if and (include "contrafact.fetches" .) (not (has "ReadWriteMany" .Values.weights.accessModes)) }}true{{ end }}
{{- end }}

{{/* The label by which pods that share the volume of one node find each other. */}}
{{- define "contrafact.besideWeightsLabel" -}}
{{- if include "contrafact.oneNode" . }}
contrafact/weights: {{ .Release.Name }}
{{- end }}
{{- end }}

{{/* Puts pods that share the volume of one node onto that node. */}}
{{- define "contrafact.besideWeights" -}}
{{- if include "contrafact.oneNode" . }}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {contrafact/weights: {{ .Release.Name }}}
{{- end }}
{{- end }}

{{/* Taints that a pod with GPUs, or on the node of the volume of weights, does not mind; call with (list $ gpus own). */}}
{{- define "contrafact.tolerations" -}}
{{- $root := index . 0 }}
{{- $gpu := or (gt (int (index . 1)) 0) (include "contrafact.oneNode" $root) }}
{{- if or $gpu (index . 2) }}
tolerations:
  {{- if $gpu }}
  - {key: {{ $root.Values.gpu.taint | quote }}, operator: Exists, effect: NoSchedule}
  {{- end }}
  {{- with index . 2 }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}

{{/* `resources` of a model service: its own, with the memory of the profile where they name none; call with (list $ "caption"). */}}
{{- define "contrafact.serviceResources" -}}
{{- $root := index . 0 }}
{{- $service := index $root.Values.services (index . 1) }}
{{- $profile := ternary "own" $root.Values.profile (ne $root.Values.profileFile "") }}
{{- $memory := index $root.Values.memory $profile (index . 1) }}
{{- $needed := dict "requests" (dict "memory" $memory.request) "limits" (dict "memory" $memory.limit) }}
{{- include "contrafact.resourcesWithGpus" (list $root (dict "gpus" $service.gpus "resources" (merge (deepCopy $service.resources) $needed))) }}
{{- end }}

{{/* `resources` with the GPUs that `gpus` asks for; call with (list $ service). */}}
{{- define "contrafact.resourcesWithGpus" -}}
{{- $service := index . 1 }}
{{- $resources := deepCopy $service.resources }}
{{- if gt (int $service.gpus) 0 }}
{{- $resources = mergeOverwrite $resources (dict "limits" (dict (index . 0).Values.gpu.resource (int $service.gpus))) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

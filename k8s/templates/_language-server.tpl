{{/* llama.cpp's server as a container beside llm_service, on the address that the profile `paper` names. */}}
{{- define "contrafact.languageServer" -}}
{{- $server := .Values.languageServer -}}
- name: language-server
  image: {{ $server.image }}
  args:
    - --host=127.0.0.1
    - --port=8012
    - --parallel={{ $server.parallel }}
    - --ctx-size={{ $server.context }}
    - --n-gpu-layers={{ ternary 99 0 (gt (int $server.gpus) 0) }}
    - --alias={{ $server.model }}
    - --model=/weights/hub/{{ $server.file }}
  {{- include "contrafact.container" . | nindent 2 }}
  startupProbe:
    exec: {command: [curl, -fs, "http://127.0.0.1:8012/health"]}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 180
  livenessProbe:
    exec: {command: [curl, -fs, "http://127.0.0.1:8012/health"]}
    periodSeconds: 15
    timeoutSeconds: 5
    failureThreshold: 4
  readinessProbe:
    exec: {command: [curl, -fs, "http://127.0.0.1:8012/health"]}
    periodSeconds: 5
    timeoutSeconds: 5
  resources: {{ include "contrafact.resourcesWithGpus" (list . $server) | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: weights, mountPath: /weights, readOnly: true}
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

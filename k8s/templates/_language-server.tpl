{{/* llama.cpp's server as a container beside llm_service, on the address that the profile `paper` names. */}}
{{- define "contrafact.languageServer" -}}
{{- $server := .Values.languageServer -}}
- name: language-server
  image: {{ $server.image }}
  # llama.cpp takes a value as an argument of its own, not after "=".
  args:
    {{- $arguments := list "--host" "127.0.0.1" "--port" "8012" "--parallel" (int $server.parallel) "--ctx-size" (int $server.context) }}
    {{- $arguments = concat $arguments (list "--cache-type-k" $server.cacheType "--cache-type-v" $server.cacheType "--flash-attn" "on") }}
    {{- $arguments = concat $arguments (list "--jinja" "--chat-template" $server.chatTemplate) }}
    {{- $arguments = concat $arguments (list "--n-gpu-layers" (ternary 99 0 (gt (int $server.gpus) 0)) "--alias" $server.model) }}
    {{- range concat $arguments (list "--model" (printf "/weights/hub/%s" $server.file)) }}
    - {{ . | toString | quote }}
    {{- end }}
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

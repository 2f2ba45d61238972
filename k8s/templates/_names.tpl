{{/* Names, labels and the pieces that several templates share. */}}

{{- define "contrafact.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels that select the pods of a component; call with (list $ "gateway"). */}}
{{- define "contrafact.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "contrafact.labels" -}}
{{ include "contrafact.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{/* An image of ours; call with (list $ "gateway" gpus). */}}
{{- define "contrafact.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- with $images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
contrafact-{{ index . 1 }}:{{ $images.tag | default (index . 0).Chart.AppVersion }}{{ if gt (int (index . 2)) 0 }}-cuda{{ end }}
{{- end }}

{{- define "contrafact.secret" -}}
{{ .Values.existingSecret | default (include "contrafact.name" .) }}
{{- end }}

{{/* Whether there is a volume of weights: everything but the shipped `tiny`. */}}
{{- define "contrafact.fetches" -}}
{{- if or .Values.profileFile (ne .Values.profile "tiny") }}true{{ end }}
{{- end }}

{{/* Whether llama.cpp runs beside llm_service. */}}
{{- define "contrafact.servesLanguage" -}}
{{- if and (eq .Values.profile "paper") (not .Values.profileFile) }}true{{ end }}
{{- end }}

{{- define "contrafact.profile" -}}
{{- if .Values.profileFile }}/profiles/profile.toml{{ else }}{{ .Values.profile }}{{ end }}
{{- end }}

{{- define "contrafact.weightsClaim" -}}
{{ .Values.weights.existingClaim | default (printf "%s-weights" (include "contrafact.name" .)) }}
{{- end }}

{{/* One variable from the secret; call with (list $ "CONTRAFACT_API_KEY"). */}}
{{- define "contrafact.secretVariable" -}}
- name: {{ index . 1 }}
  valueFrom: {secretKeyRef: {name: {{ include "contrafact.secret" (index . 0) }}, key: {{ index . 1 }}}}
{{- end }}

{{/* Where links of the object store lead, which the evaluator follows to uploaded models. */}}
{{- define "contrafact.modelOrigin" -}}
{{- if .Values.objectStore.linkOrigin -}}
{{ .Values.objectStore.linkOrigin }}
{{- else if .Values.objectStore.bundled -}}
http://{{ include "contrafact.name" . }}-object-store:7070
{{- else -}}
{{ ternary "https" "http" .Values.objectStore.secure }}://{{ .Values.objectStore.endpoint }}
{{- end -}}
{{- end }}

{{/* Where the object store is, and the keys to it. */}}
{{- define "contrafact.storeEnvironment" -}}
- {name: CONTRAFACT_OBJECT_STORE, value: {{ printf "s3:%s" .Values.objectStore.bucket | quote }}}
{{- if .Values.objectStore.bundled }}
- {name: CONTRAFACT_S3_ENDPOINT, value: "{{ include "contrafact.name" . }}-object-store:7070"}
- {name: CONTRAFACT_S3_SECURE, value: "false"}
{{- else }}
- {name: CONTRAFACT_S3_ENDPOINT, value: {{ required "set objectStore.endpoint to host:port of your S3 server, or objectStore.bundled to true" .Values.objectStore.endpoint | quote }}}
- {name: CONTRAFACT_S3_SECURE, value: {{ .Values.objectStore.secure | quote }}}
{{- end }}
{{ include "contrafact.secretVariable" (list . "CONTRAFACT_S3_ACCESS_KEY") }}
{{ include "contrafact.secretVariable" (list . "CONTRAFACT_S3_SECRET_KEY") }}
{{- end }}

{{/* What gateway and worker read. */}}
{{- define "contrafact.gatewayEnvironment" -}}
{{- $name := include "contrafact.name" . -}}
- {name: CONTRAFACT_PROFILE, value: {{ include "contrafact.profile" . | quote }}}
- {name: CONTRAFACT_AUTHENTICATION, value: "true"}
{{ include "contrafact.secretVariable" (list . "CONTRAFACT_DATABASE_URL") }}
{{ include "contrafact.secretVariable" (list . "CONTRAFACT_BROKER_URL") }}
{{ include "contrafact.storeEnvironment" . }}
- {name: CONTRAFACT_CAPTION_URL, value: "http://{{ $name }}-caption-service:8001"}
- {name: CONTRAFACT_LLM_URL, value: "http://{{ $name }}-llm-service:8002"}
- {name: CONTRAFACT_DIFFUSION_URL, value: "http://{{ $name }}-diffusion-service:8003"}
- {name: CONTRAFACT_EVALUATOR_URL, value: "http://{{ $name }}-evaluator-service:8004"}
- {name: CONTRAFACT_IMAGES_IN_FLIGHT, value: {{ .Values.worker.imagesInFlight | quote }}}
{{ include "contrafact.imageLimit" . }}
- {name: CONTRAFACT_METRICS_PORT, value: "9000"}
{{- end }}

{{/* What gateway and worker read each for itself; call with their values. */}}
{{- define "contrafact.connectionLimit" -}}
- {name: CONTRAFACT_DATABASE_CONNECTIONS, value: {{ .databaseConnections | quote }}}
{{- end }}

{{/*
Connections to Postgres at most: of every gateway, with one more during an update; of every worker, with a quarter more that
still end during an update; and 10 for the steps at the start and the operator's commands.
*/}}
{{- define "contrafact.connections" -}}
{{- $workers := ternary .Values.worker.autoscaling.max .Values.worker.replicas .Values.worker.autoscaling.enabled | int }}
{{- $workers = add $workers (div (add $workers 3) 4) }}
{{- $gateways := add 1 .Values.gateway.replicas }}
{{- add (mul $gateways .Values.gateway.databaseConnections) (mul $workers .Values.worker.databaseConnections) 10 }}
{{- end }}

{{/*
A container's variables: the chart's, then `extraEnv` and those of its service, which must not name the same; call with
(list $ variables own).
*/}}
{{- define "contrafact.variables" -}}
{{- $variables := fromYamlArray (index . 1) }}
{{- if (index . 0).Values.certificates.configMap }}
{{- $variables = append $variables (dict "name" "SSL_CERT_FILE" "value" "/certificates/authorities.pem") }}
{{- end }}
{{- range concat (index . 0).Values.extraEnv (index . 2) }}
{{- $name := .name }}
{{- range $variables }}
{{- if eq .name $name }}
{{- fail (printf "extraEnv names %s, which the chart sets itself or which is named twice; values.yaml has a value for what may change" $name) }}
{{- end }}
{{- end }}
{{- $variables = append $variables . }}
{{- end }}
{{- toYaml $variables }}
{{- end }}

{{/* Of every pod of ours. */}}
{{- define "contrafact.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.images.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of every container. */}}
{{- define "contrafact.container" -}}
imagePullPolicy: {{ .Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The profile and the certificates, where values name some: of every container of ours. */}}
{{- define "contrafact.fileVolumes" -}}
{{- if .Values.profileFile }}
- name: profile
  configMap: {name: {{ include "contrafact.name" . }}-profile}
{{- end }}
{{- with .Values.certificates }}
{{- if .configMap }}
- name: certificates
  configMap: {name: {{ .configMap }}, items: [{key: {{ .key }}, path: authorities.pem}]}
{{- end }}
{{- end }}
{{- end }}

{{- define "contrafact.fileMounts" -}}
{{- if .Values.profileFile }}
- {name: profile, mountPath: /profiles, readOnly: true}
{{- end }}
{{- if .Values.certificates.configMap }}
- {name: certificates, mountPath: /certificates, readOnly: true}
{{- end }}
{{- end }}

{{/* The largest image that a process decodes: of every pod that decodes one. */}}
{{- define "contrafact.imageLimit" -}}
- {name: CONTRAFACT_MAX_IMAGE_PIXELS, value: {{ .Values.maxImagePixels | int64 | quote }}}
{{- end }}

{{/* Pods start anew when what they read changed. */}}
{{- define "contrafact.checksums" -}}
checksum/profile: {{ print .Values.profile .Values.profileFile | sha256sum | trunc 16 | quote }}
{{- if not .Values.existingSecret }}
checksum/secret: {{ toJson .Values.secrets | sha256sum | trunc 16 | quote }}
{{- end }}
{{- end }}

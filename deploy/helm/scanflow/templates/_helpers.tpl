{{/* The release's objects are named by it: "scanflow", or "prod-scanflow" for the release "prod". */}}
{{- define "scanflow.name" -}}
{{- $name := ternary .Release.Name (printf "%s-scanflow" .Release.Name) (contains "scanflow" .Release.Name) -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "scanflow.labels" -}}
app.kubernetes.io/name: scanflow
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "scanflow.selector" -}}
app.kubernetes.io/name: scanflow
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "scanflow.account" -}}
{{- .Values.serviceAccount.name | default (include "scanflow.name" .) -}}
{{- end -}}

{{/* image: of (dict "root" . "image" .Values.server.image) */}}
{{- define "scanflow.image" -}}
{{- $place := printf "%s%s" .root.Values.imageRegistry .image.repository -}}
{{- if .image.digest -}}{{ $place }}@{{ .image.digest }}{{- else -}}{{ $place }}:{{ .image.tag | default .root.Chart.AppVersion }}{{- end -}}
{{- end -}}

{{/* The image of what the server makes: (dict "root" . "given" "" "repository" "scanflow/base") */}}
{{- define "scanflow.ownImage" -}}
{{- .given | default (printf "%s%s:%s" .root.Values.imageRegistry .repository (.root.Values.server.image.tag | default .root.Chart.AppVersion)) -}}
{{- end -}}

{{- define "scanflow.host" -}}
{{ include "scanflow.name" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "scanflow.scheme" -}}
{{ ternary "http" "https" (eq .Values.server.tls.mode "proxy") }}
{{- end -}}

{{- define "scanflow.tokenSecret" -}}
{{- .Values.server.token.secret | default (printf "%s-token" (include "scanflow.name" .)) -}}
{{- end -}}

{{- define "scanflow.tlsSecret" -}}
{{- ternary .Values.server.tls.secret (printf "%s-tls" (include "scanflow.name" .)) (eq .Values.server.tls.mode "secret") -}}
{{- end -}}

{{- define "scanflow.trackerUrl" -}}
{{- if .Values.tracker.enabled -}}
http://{{ include "scanflow.name" . }}-tracker.{{ .Release.Namespace }}.svc:5000
{{- else -}}
{{ .Values.tracker.url }}
{{- end -}}
{{- end -}}

{{- define "scanflow.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "scanflow.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "scanflow.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
